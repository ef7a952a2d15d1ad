import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function InboxScreen() { return html`<${Empty} title="InboxScreen" />`; }
