import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Journal() { return html`<${Empty} title="Journal" />`; }
