// The title of the page: the screen, and the number of open questions, so that a tab in the background shows them.
import { useEffect } from "../vendor/vendor.mjs";
import { openQuestions } from "./questions.mjs";
import { useStore } from "./store.mjs";

/** @param {string} title */
export function useTitle(title) {
  const open = useStore(openQuestions)?.length ?? 0;
  useEffect(() => {
    document.title = `${open > 0 ? `(${open}) ` : ""}${title ? `${title} · ` : ""}Millrace`;
  }, [title, open]);
}
