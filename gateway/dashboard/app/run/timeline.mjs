import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function Timeline() { return html`<${Empty} title="Timeline" />`; }
