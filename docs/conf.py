"""How the documentation is built."""

from importlib import metadata

project = "siteless"
author = "The siteless developers"
release = metadata.version("siteless")
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
html_theme = "furo"
numpydoc_show_class_members = False
exclude_patterns = ["_build"]
