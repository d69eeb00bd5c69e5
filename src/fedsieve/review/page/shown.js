// A sample as a person sees it: an image, a text, or the cells of a table.

import { made } from "./dom.js";

export function picture(backend, row, side, alt) {
  return made("img", { src: backend.image(row, side), alt, decoding: "async", draggable: "false" });
}

const ENLARGED = 12;

/** Images that are small to begin with are enlarged without blurring, and not beyond recognition. */
export function crisp(image) {
  const mark = () => {
    image.classList.toggle("crisp", image.naturalWidth < 128);
    image.style.maxWidth = `${ENLARGED * image.naturalWidth}px`;
    image.style.maxHeight = `${ENLARGED * image.naturalHeight}px`;
  };
  if (image.complete) mark();
  else image.addEventListener("load", mark);
  return image;
}

export function cellsTable(sample, near = []) {
  const names = Object.keys(sample.cells);
  const head = made("tr", {}, made("th", { scope: "col" }, "column"), made("th", { scope: "col", class: "number" }, "this row"));
  for (const { heading, name } of near) head.append(made("th", { scope: "col", class: `number ${name}` }, heading));
  const rows = names.map((name) => made("tr", {},
    made("th", { scope: "row" }, name),
    made("td", { class: "number" }, sample.cells[name]),
    ...near.map((one) => made("td", { class: "number" }, one.cells[name] ?? ""))));
  return made("div", { class: "scroll", tabindex: "0" },
    made("table", {}, made("thead", {}, head), made("tbody", {}, ...rows)));
}

/** The small form that stands for a row among many. */
export function tileContent(backend, kind, sample) {
  if (kind === "image") return crisp(picture(backend, sample.row, "small", ""));
  const text = sample.text ?? Object.entries(sample.cells).map(([name, cell]) => `${name} ${cell}`).join(" · ");
  return made("span", { class: "snippet" }, text);
}
