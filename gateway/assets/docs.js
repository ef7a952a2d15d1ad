// @ts-check
// Renders the description of the API. Text is set as text, never as HTML.

/** @param {string} name @param {Record<string, string>} attributes @param {...(Node | string)} children */
function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** A schema in a few words, with links to the schemas that it names. @param {any} schema @returns {Node} */
function schemaName(schema) {
  if (schema?.$ref) {
    const name = schema.$ref.split("/").pop();
    return element("a", { href: `#schema-${name}` }, name);
  }
  const type = Array.isArray(schema?.type) ? schema.type.join(" or ") : schema?.type;
  return document.createTextNode(schema?.enum ? schema.enum.join(", ") : type ?? "any");
}

/** @param {any} content */
function bodies(content) {
  const list = element("ul", {});
  for (const [mediaType, body] of Object.entries(content ?? {})) {
    list.append(element("li", {}, element("code", {}, mediaType), " ", schemaName(/** @type {any} */ (body).schema)));
  }
  return list;
}

/** @param {string} path @param {string} method @param {any} operation */
function renderOperation(path, method, operation) {
  const head = element("summary", {}, element("span", { class: "method" }, method), element("code", {}, path), ` ${operation.summary ?? ""}`);
  const node = element("details", { id: `${method}-${path}` }, head);
  if (operation.description) node.append(element("p", {}, operation.description));
  if (operation.parameters?.length) {
    const rows = operation.parameters.map((/** @type {any} */ parameter) =>
      element("tr", {}, element("td", {}, element("code", {}, parameter.name)), element("td", {}, parameter.in),
        element("td", {}, schemaName(parameter.schema)), element("td", {}, parameter.description ?? "")));
    node.append(element("h4", {}, "Parameters"), element("table", {}, ...rows));
  }
  if (operation.requestBody) node.append(element("h4", {}, "Body"), bodies(operation.requestBody.content));
  node.append(element("h4", {}, "Responses"));
  for (const [status, response] of Object.entries(operation.responses ?? {})) {
    const { description, content } = /** @type {any} */ (response);
    node.append(element("p", {}, element("code", {}, status), ` ${description ?? ""}`), bodies(content));
  }
  return node;
}

async function render() {
  const reply = await fetch("/api/v1/openapi.json");
  const api = await reply.json();
  const about = document.getElementById("about");
  if (about) about.textContent = `${api.info.description} Release ${api.info.version}.`;
  /** @type {Map<string, Node[]>} */
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(/** @type {any} */ (item))) {
      const tag = /** @type {any} */ (operation).tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), renderOperation(path, method, operation)]);
    }
  }
  for (const [tag, nodes] of groups) {
    document.getElementById("operations")?.append(element("section", {}, element("h2", {}, tag), ...nodes));
  }
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const text = element("pre", {}, JSON.stringify(schema, null, 2));
    document.getElementById("schemas")?.append(element("details", { id: `schema-${name}` }, element("summary", {}, name), text));
  }
  const open = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.setAttribute("open", "");
  addEventListener("hashchange", open);
  open();
}

render().catch((error) => {
  const about = document.getElementById("about");
  if (about) about.textContent = `The description can't be read: ${error}`;
});
