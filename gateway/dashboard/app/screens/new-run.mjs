import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function NewRunScreen() { return html`<${Empty} title="NewRunScreen" />`; }
