import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function CompareScreen() { return html`<${Empty} title="CompareScreen" />`; }
