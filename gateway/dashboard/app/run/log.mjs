import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Log() { return html`<${Empty} title="Log" />`; }
