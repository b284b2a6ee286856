// Render templates by Go's own engine (the npm package that the test installs): JSON in, JSON out.
// in: {engine: path of the package, templates: {name: text}, values: what "." is}    out: {name: text}
import { readFileSync } from "node:fs";

const { engine, templates, parts, values } = JSON.parse(readFileSync(0, "utf8"));
const { parse } = await import(engine);
const rendered = {};
for (const [name, text] of Object.entries(templates)) {
  rendered[name] = await parse(parts + text, values);
}
process.stdout.write(JSON.stringify(rendered), () => process.exit(0));
