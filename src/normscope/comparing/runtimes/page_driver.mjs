// Runs the code of an exported page in Node: `node page_driver.mjs PAGE` answers lines of JSON, {method, arguments}.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { runInThisContext } from "node:vm";

const page = readFileSync(process.argv[2], "utf8");
const content = (id) => page.match(new RegExp(`<script[^>]* id="${id}">([^<]*)</script>`))[1];
const script = page.match(/<script type="module">([\s\S]*?)<\/script>/)[1];

// Whatever the page does with its document, it gets this. Only the model and the weights are real.
const anything = new Proxy(function () {}, {
  get: (_, name) => (name === Symbol.toPrimitive ? () => "" : name === Symbol.iterator ? [][Symbol.iterator] : anything),
  apply: () => anything,
  construct: () => anything,
  set: () => true,
});
const elements = { model: content("model"), weights: content("weights") };
const getElementById = (id) => (id in elements ? { textContent: elements[id], remove() {} } : anything);
const provided = { document: new Proxy(anything, { get: (_, name) => (name === "getElementById" ? getElementById : anything) }) };
for (const name of ["localStorage", "sessionStorage", "location", "history", "matchMedia", "addEventListener", "requestAnimationFrame", "navigator"])
  provided[name] = anything;
for (const [name, value] of Object.entries({ ...provided, window: globalThis }))
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });

let problem = null;
try {
  runInThisContext(script);
} catch (error) {
  problem = error; // showing the page fails without a document; by then the model is there
}
if (!globalThis.normscope) throw problem ?? new Error("the page did not provide its model");

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const { method, arguments: given } = JSON.parse(line);
  let answer;
  try {
    answer = { result: globalThis.normscope[method](...given) };
  } catch (error) {
    answer = { error: String(error) };
  }
  console.log(JSON.stringify(answer));
}
