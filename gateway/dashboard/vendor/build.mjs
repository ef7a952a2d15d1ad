// Bundles the libraries of the dashboard: `npm ci && npm run build` in this folder writes vendor.mjs, vendor.css and LICENSES.txt.
// With --check it compares them with the committed files, byte for byte, and writes nothing.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { build } from "esbuild";

const folder = new URL("./", import.meta.url);
const read = (name) => readFileSync(new URL(name, folder), "utf8");

const bundle = await build({
  entryPoints: ["entry.mjs"], absWorkingDir: new URL(".", folder).pathname, bundle: true, format: "esm", minify: true,
  target: ["es2022"], legalComments: "none", write: false, metafile: true,
});

/** The packages in the bundle, by name. */
const packages = new Set(
  Object.keys(bundle.metafile.inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]).filter(Boolean),
);
const licences = [...packages].sort().map((name) => {
  const { version, license, homepage } = JSON.parse(read(`node_modules/${name}/package.json`));
  const file = readdirSync(new URL(`node_modules/${name}/`, folder)).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file || !["MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"].includes(license)) {
    throw new Error(`${name} ${version}: licence ${license}, file ${file}: only permissive licences with their text may be bundled`);
  }
  return `${name} ${version} (${license})${homepage ? `\n${homepage}` : ""}\n\n${read(`node_modules/${name}/${file}`).trim()}\n`;
});

const header = "/* Bundled by build.mjs from package-lock.json; the licences are in LICENSES.txt. Do not edit. */\n";
const outputs = {
  "vendor.mjs": header + bundle.outputFiles[0].text,
  "vendor.css": header + read("node_modules/uplot/dist/uPlot.min.css"),
  "LICENSES.txt": `The libraries in vendor.mjs and vendor.css.\n\n${licences.join("\n----------------------------------------\n\n")}`,
};
const sums = Object.entries(outputs).map(([name, text]) => `${createHash("sha256").update(text).digest("hex")}  ${name}\n`);
outputs["vendor.sha256"] = sums.join("");

const differing = Object.entries(outputs).filter(([name, text]) => {
  try {
    return read(name) !== text;
  } catch {
    return true;
  }
});
if (process.argv.includes("--check")) {
  for (const [name] of differing) console.error(`${name} is not what build.mjs makes of package-lock.json; run npm ci && npm run build`);
  process.exitCode = differing.length > 0 ? 1 : 0;
} else {
  for (const [name, text] of differing) writeFileSync(new URL(name, folder), text);
}
