import { render } from "preact";
import "./base.css";
import { Shell } from "./shell";

render(<Shell />, document.getElementById("app")!);
