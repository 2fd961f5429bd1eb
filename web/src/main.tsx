import { render } from "preact";
import "./base.css";
import { Shell } from "./shell";

// The token is in a cookie now: keep it out of the address that people copy, and of the history.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

render(<Shell />, document.getElementById("app")!);
