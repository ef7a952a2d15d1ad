import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Files() { return html`<${Empty} title="Files" />`; }
