import { html } from "../html.mjs";
import { Empty } from "../ui/basics.mjs";
export function RunQuestions() { return html`<${Empty} title="RunQuestions" />`; }
