import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function ClusterScreen() { return html`<${Empty} title="ClusterScreen" />`; }
