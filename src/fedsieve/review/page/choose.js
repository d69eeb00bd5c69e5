// Choosing a class by typing a part of its name, or its number.

import { at, made } from "./dom.js";

export class Choose {
  constructor(classes, take) {
    this.classes = classes;
    this.take = take;
    this.active = 0;
    at("choose-text").addEventListener("input", () => this.list());
    at("choose-text").addEventListener("keydown", (event) => this.key(event));
    at("choose-list").addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.close(Number(option.dataset.class));
    });
  }

  open() {
    at("choose-text").value = "";
    this.list();
    at("choose").showModal();
    at("choose-text").focus();
  }

  /** Names that begin with what was typed first, then those that hold it. */
  list() {
    const typed = at("choose-text").value.trim().toLowerCase();
    const numbered = this.classes.map((name, number) => ({ name, number }));
    const fits = ({ name, number }) => (`${number + 1}` === typed ? 0 : name.toLowerCase().startsWith(typed) ? 1 : name.toLowerCase().includes(typed) ? 2 : 3);
    const found = numbered.filter((one) => fits(one) < 3).sort((a, b) => fits(a) - fits(b));
    at("choose-list").replaceChildren(...found.slice(0, 100).map(({ name, number }) => made("li",
      { role: "option", id: `class-${number}`, "data-class": `${number}` }, made("kbd", {}, `${number + 1}`), ` ${name}`)));
    this.point(0);
  }

  point(index) {
    const options = [...at("choose-list").children];
    this.active = Math.max(0, Math.min(options.length - 1, index));
    for (const [i, option] of options.entries()) option.setAttribute("aria-selected", `${i === this.active}`);
    at("choose-text").setAttribute("aria-activedescendant", options[this.active]?.id ?? "");
    options[this.active]?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (steps) this.point(this.active + steps);
    else if (event.key === "Enter") this.close(Number(at("choose-list").children[this.active]?.dataset.class ?? NaN));
    else return;
    event.preventDefault();
  }

  close(number) {
    if (Number.isNaN(number)) return;
    at("choose").close();
    this.take(number);
  }
}
