// Tabs by pointer and by keys, what dots tell, and copying.
for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !on;
    }
  };
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs.at((tabs.indexOf(document.activeElement) + step) % tabs.length);
    choose(next);
    next.focus();
  });
  choose(tabs[0]);
}

const tip = document.getElementById("tip");
const show = (dot, x, y) => {
  tip.textContent = dot.dataset.tip;
  tip.hidden = false;
  tip.style.left = `${Math.min(x + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${y + 30 + tip.offsetHeight > innerHeight ? y - 12 - tip.offsetHeight : y + 14}px`;
};
for (const kind of ["pointerover", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const dot = event.target.closest?.("[data-tip]");
    if (dot) show(dot, event.clientX, event.clientY);
    else tip.hidden = true;
  });
}
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

for (const button of document.querySelectorAll("[data-copy]")) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    let done = true;
    try {
      await navigator.clipboard.writeText(source.innerText.trim());
    } catch {
      getSelection().selectAllChildren(source);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = label; }, 2000);
  });
}
