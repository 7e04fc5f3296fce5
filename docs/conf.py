"""How the documentation is built."""

from importlib import metadata

project = "siteless"
author = "The siteless developers"
release = metadata.version("siteless")
extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # a test runs the notebook; building pages should take seconds
html_theme = "furo"
numpydoc_show_class_members = False
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
