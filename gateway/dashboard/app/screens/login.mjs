// Signing in with a token, where the gateway demands one.
import { useState } from "../../vendor/vendor.mjs";
import { connection } from "../connection.mjs";
import { html } from "../html.mjs";
import { go } from "../router.mjs";

export function LoginScreen() {
  const [token, setToken] = useState("");
  // For a token that is for several tenants: the gateway asks for one.
  const [tenant, setTenant] = useState("");
  const [needsTenant, setNeedsTenant] = useState(false);
  const [mistake, setMistake] = useState("");
  const [isBusy, setBusy] = useState(false);
  const signIn = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      /** @type {Record<string, string>} */
      const headers = { "Content-Type": "application/json" };
      if (tenant.trim()) headers["Millrace-Tenant"] = tenant.trim();
      const response = await fetch("/api/v1/login", { method: "POST", headers, body: JSON.stringify({ token: token.trim() }) });
      if (response.ok) {
        connection.signedIn();
        if (location.pathname === "/login") go("/runs", { replace: true });
        return;
      }
      const problem = await response.json().catch(() => null);
      if (problem?.type === "urn:millrace:problem:tenant-not-chosen") setNeedsTenant(true);
      setMistake(problem?.detail ?? `The server answered with the status ${response.status}.`);
    } catch {
      setMistake("The gateway does not respond. Check that it is running, and try again.");
    } finally {
      setBusy(false);
    }
  };
  return html`<form class="panel login stack" onSubmit=${signIn}>
    <h1>Sign in to Millrace</h1>
    <p class="muted">This gateway demands a token. Who runs it creates one with <code>millrace token create NAME --scope read,submit,steer,answer</code>.</p>
    <label class="field"><span class="name">Token</span>
      <input type="password" autocomplete="current-password" autofocus required value=${token} aria-invalid=${Boolean(mistake)}
        onInput=${(/** @type {any} */ event) => setToken(event.target.value)} /></label>
    ${needsTenant && html`<label class="field"><span class="name">Tenant</span>
      <input type="text" autocomplete="organization" required value=${tenant} onInput=${(/** @type {any} */ event) => setTenant(event.target.value)} /></label>`}
    ${mistake && html`<p class="mistake" role="alert">${mistake}</p>`}
    <div><button class="button primary" disabled=${isBusy || !token.trim()}>Sign in</button></div>
  </form>`;
}
