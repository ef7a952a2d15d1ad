import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Spend() { return html`<${Empty} title="Spend" />`; }
