// Shows volumes side by side on one slice. NiiVue draws; this file links panels and controls.

const AXES = [2, 1, 0]; // of the world, by plane: axial slices lie along z
const LETTERS = "xyz";
const SIDES = ["LRAP", "LRSI", "PASI"]; // left, right, top and bottom of a picture, by plane
const OPTIONS = {
  backColor: [0, 0, 0, 1],
  crosshairWidth: 0, // ours is as thin in every plane of an oblique image
  interactive: false, // or wheel, touch and keys would not reach the page
  isAlphaClipDark: true,
  isNearestInterpolation: true,
  isOrientationTextVisible: false, // it is written over the brain
  isSliceMM: true, // slices of the world, also where the image is oblique
  loadingText: "",
  logLevel: "error",
};

const root = document.getElementById("siteless-viewer");
const find = (selector) => root.querySelector(selector);
const slider = find("input[name=slice]");
const { scans, palettes } = JSON.parse(document.getElementById("siteless-volumes").textContent);
let Niivue; // when the viewer has come near
const state = { scan: 0, quantity: Object.keys(scans[0].maps)[0], plane: 0, mm: [0, 0, 0] };
const panels = [...root.querySelectorAll("figure")].map((figure) => ({
  figure,
  name: figure.dataset.panel,
  frame: figure.querySelector(".viewer-frame"),
  value: figure.querySelector(".viewer-value"),
  bar: figure.querySelector(".viewer-bar"),
}));

function fail(error) {
  say(`The viewer cannot show this (${error.message}).`);
}

function say(text) {
  find(".viewer-status").textContent = text;
}

/** Return the bytes that a script element holds in base64. */
function bytesOf(id) {
  const text = document.getElementById(id).textContent;
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function importNiivue() {
  const packed = new Blob([bytesOf("siteless-niivue")]).stream();
  const source = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).blob();
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return (await import(url)).Niivue;
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** Give NiiVue a map of colours: the first of 256 is clear, the others are those of the bar. */
function addPalette(view, name) {
  const colours = palettes[name].map((text) => parseInt(text.slice(1), 16));
  const part = (shift) => [0, ...colours.map((colour) => (colour >> shift) & 255)];
  const places = colours.map((_, n) => 1 + Math.round((254 * n) / (colours.length - 1)));
  view.addColormap(`siteless-${name}`, {
    R: part(16),
    G: part(8),
    B: part(0),
    A: [0, ...colours.map(() => 255)],
    I: [0, ...places],
  });
}

async function attach(panel) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", panel.name);
  panel.frame.querySelector("img")?.remove();
  panel.frame.prepend(canvas);
  panel.view = new Niivue(OPTIONS);
  await panel.view.attachToCanvas(canvas, false);
  panel.view.setPan2Dxyzmm([0, 0, 0, 0.9]); // room for the letters around the brain
  Object.keys(palettes).forEach((name) => addPalette(panel.view, name));
  canvas.addEventListener("click", (event) => pick(panel, event));
}

/** Move the crosshair of all panels to where one of them was clicked. */
function pick({ view }, event) {
  const ratio = view.canvas.width / view.canvas.clientWidth;
  const frac = view.canvasPos2frac([event.offsetX * ratio, event.offsetY * ratio]);
  if (frac[0] < 0) return; // beside the image
  state.mm = [...view.frac2mm(frac)].slice(0, 3);
  move();
}

/** Put in each panel the volume that was chosen. */
async function load() {
  root.setAttribute("aria-busy", "true");
  const shown = scans[state.scan].maps[state.quantity];
  try {
    await Promise.all(panels.map((panel) => loadPanel(panel, shown[panel.name])));
    turn();
  } finally {
    root.setAttribute("aria-busy", "false");
  }
}

async function loadPanel(panel, told) {
  panel.told = told;
  panel.figure.hidden = !told;
  if (!told) return;
  panel.bar.innerHTML = told.bar;
  if (!panel.view) await attach(panel);
  const old = [...panel.view.volumes];
  await panel.view.addVolumeFromUrl({
    url: "map.nii.gz",
    name: "map.nii.gz",
    buffer: bytesOf(told.data).buffer,
    colormap: told.colours ? `siteless-${told.colours}` : "gray",
  });
  old.forEach((volume) => panel.view.removeVolume(volume));
}

/** Set the slider to the plane's axis, at the position that is shown. */
function turn() {
  const { low, high, step } = scans[state.scan];
  const axis = AXES[state.plane];
  slider.min = low[axis];
  slider.max = high[axis] + step[axis] / 100; // so that the last slice is not lost in rounding
  slider.step = step[axis];
  slider.value = state.mm[axis];
  state.mm[axis] = Number(slider.value);
  root.querySelectorAll(".viewer-frame b").forEach((letter, n) => {
    letter.textContent = SIDES[state.plane][n % 4];
  });
  shownPanels().forEach(({ view }) => view.setSliceType(state.plane));
  move();
}

/** Show the chosen position in all panels and say where it is. */
function move() {
  const axis = AXES[state.plane];
  const where = `${LETTERS[axis]} = ${minus(state.mm[axis].toFixed(1))} mm`;
  slider.setAttribute("aria-valuetext", where);
  find(".viewer-where").textContent = where;
  for (const panel of shownPanels()) {
    panel.view.scene.crosshairPos = panel.view.mm2frac(state.mm);
    panel.view.drawScene();
    drawCross(panel);
    panel.value.textContent = valueAt(panel);
    panel.view.canvas.setAttribute("aria-label", `${panel.name}: ${state.quantity}, ${where}`);
  }
}

function drawCross({ view, frame }) {
  const place = view.frac2canvasPos(view.scene.crosshairPos) ?? [-1, -1];
  const { width, height } = view.canvas;
  frame.style.setProperty("--x", `${(100 * place[0]) / width}%`);
  frame.style.setProperty("--y", `${(100 * place[1]) / height}%`);
}

function valueAt({ view, told }) {
  if (!told.colours) return "";
  const volume = view.volumes[0];
  const value = volume.getValue(...volume.convertFrac2Vox(view.scene.crosshairPos));
  const range = told.high - told.low;
  const digits = Math.max(0, 2 - Math.floor(Math.log10(range)));
  return value < told.low - range / 500 ? "" : minus(value.toFixed(digits)); // empty outside
}

function minus(text) {
  return text.replace("-", "\u2212");
}

function shownPanels() {
  return panels.filter((panel) => panel.told && panel.view?.volumes.length);
}

/** Offer the maps of the chosen scan, and its middle. */
function chooseScan() {
  const { maps, low, high } = scans[state.scan];
  const select = find("select[name=quantity]");
  select.replaceChildren(...Object.keys(maps).map((name) => new Option(name)));
  if (!(state.quantity in maps)) state.quantity = Object.keys(maps)[0];
  select.value = state.quantity;
  state.mm = low.map((first, axis) => (first + high[axis]) / 2);
}

let queue = Promise.resolve(); // volumes are loaded one set after the other
function change(event) {
  const { name, value } = event.target;
  if (name === "scan") state.scan = Number(value);
  if (name === "scan") chooseScan();
  if (name === "quantity") state.quantity = value;
  if (name === "scan" || name === "quantity") queue = queue.then(load).catch(fail);
  if (name === "viewer-plane") state.plane = Number(value);
  if (name === "viewer-plane") turn();
}

function slide() {
  state.mm[AXES[state.plane]] = Number(slider.value);
  move();
}

async function start() {
  if (!document.createElement("canvas").getContext("webgl2")) {
    find(".viewer-controls").hidden = find(".viewer-hint").hidden = true;
    say("Moving through slices needs WebGL 2, which this browser does not offer.");
    return;
  }
  Niivue = await importNiivue();
  chooseScan();
  find(".viewer-controls").disabled = false;
  find(".viewer-controls").addEventListener("change", change);
  slider.addEventListener("input", slide);
  addEventListener("beforeprint", move);
  await load();
}

const watcher = new IntersectionObserver(
  (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    start().catch(fail);
  },
  { rootMargin: "600px" },
);
watcher.observe(root);
