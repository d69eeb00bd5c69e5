// Where rows come from and decisions go: the server that serves this page.

import { trouble } from "./dom.js";

const AGAIN = 2000;
const ENDED = "The review was ended. Start it again and open its new address here; this page then goes on.";

async function asked(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(answer.status === 403 ? ENDED : `${path}: ${answer.status}`);
  return answer.json();
}

const waiting = [];
let sending = false;

/** One after the other, in order; what cannot be sent now is sent later. */
async function sendAll() {
  if (sending) return;
  sending = true;
  while (waiting.length) {
    const problem = await sent(waiting[0]);
    trouble(problem && `Not saved yet: ${problem}`);
    if (problem) await new Promise((done) => setTimeout(done, AGAIN));
    else waiting.shift()[1]();
  }
  sending = false;
}

async function sent([wishes]) {
  try {
    const answer = await fetch("api/decide", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ wishes }),
    });
    if (answer.ok) return "";
    return answer.status === 403 ? ENDED : await answer.text();
  } catch {
    return ENDED;
  }
}

window.addEventListener("beforeunload", (event) => {
  if (waiting.length) event.preventDefault();
});

export const backend = {
  overview: () => asked("api/overview"),
  sample: (row) => asked(`api/sample/${row}`),
  samples: (rows) => asked(`api/samples?rows=${rows.join(",")}`),
  estimates: () => asked("api/estimates"),
  image: (row, side) => `image/${row}/${side}`,
  /** Resolves when the decisions are on disk. */
  decide: (wishes) => new Promise((done) => {
    waiting.push([wishes, done]);
    sendAll();
  }),
  download: null,
};
