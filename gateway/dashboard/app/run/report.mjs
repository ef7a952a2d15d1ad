import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Report() { return html`<${Empty} title="Report" />`; }
