// Elements of the page. Text of others is set as text, never as markup.

export const at = (id) => document.getElementById(id);

export function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** For those who listen to the page. */
export function announce(text) {
  at("live").textContent = text;
}

export function trouble(text) {
  at("trouble").hidden = !text;
  at("trouble").textContent = text;
}

export const perCent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
