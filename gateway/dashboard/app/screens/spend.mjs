import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function SpendScreen() { return html`<${Empty} title="SpendScreen" />`; }
