/** The page of an exported model: reads the model from the document, and shows it. */
import { render } from "preact";
import "../base.css";
import "./export.css";
import { loadModel } from "./load";
import { Page } from "./page";
import { programmable } from "./programmable";

const loaded = loadModel(document);
// For scripts and tests, and for whoever opens the console.
Object.assign(window, { normscope: programmable(loaded) });
render(<Page loaded={loaded} />, document.getElementById("app")!);
