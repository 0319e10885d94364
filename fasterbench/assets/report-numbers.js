// Elements of the page.
const at = id => document.getElementById(id)
const element = (tag, props = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), props)
  made.append(...children)
  return made
}

const wide = () => innerWidth > 700

// Numbers, as the rest of the package prints them: SI prefixes, "?" for what is unknown.
const prefixes = ["f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E"]
function si(x, unit = "") {
  const power = x ? Math.max(-5, Math.min(6, Math.floor(Math.log10(Math.abs(x) * 1.000005) / 3))) : 0
  return `${(x / 1000 ** power).toFixed(x ? 2 : 0)}${unit && " "}${prefixes[power + 5]}${unit}`
}

const writers = {
  text: x => String(x), count: x => String(x), flag: x => x ? "yes" : "no",
  si, amount: x => si(x), share: x => (100 * x).toFixed(1) + " %", percent: x => x.toFixed(1) + " %",
  ratio: x => "×" + x.toFixed(2), fixed: (x, unit) => unit === "GFLOP/s" ? si(1e9 * x, "FLOP/s") : x.toFixed(2),
}
function write(x, format, unit) {
  if (x === null || x === undefined) return "?"
  if (x === "") return ""
  return x === Infinity ? "∞" : writers[format](x, unit)
}

// The signature of a C++ function without its return type, its parameters and namespaces.
function stem(name) {
  if (!/<|::/.test(name)) return name
  const text = name.replace(/^void |\(anonymous namespace\)::/g, "").trim()
  let depth = 0, end = text.length
  if (text.endsWith(")")) do { end -= 1; depth += (text[end] === ")") - (text[end] === "(") } while (depth && end)
  return text.slice(0, end || text.length).replace(/\b(?:\w+::)+/g, "")
}

// A long name loses its middle. Of a path the first parts are cut to their first letter and their number.
const middle = (text, width, start) => text.length <= width ? text
  : `${text.slice(0, Math.floor(width * start))}…${text.slice(1 - Math.ceil(width * (1 - start)))}`
function shorten(name, width) {
  const text = name.length <= width ? name : stem(name)
  if (text.length <= width || /[<( ]/.test(text)) return middle(text, width, 0.66)
  const parts = text.split("."), last = parts.length - 1
  for (let i = 0; i < last && parts.join(".").length > width; i++) parts[i] = parts[i].replace(/^(.).+\D(\d*)$/, "$1…$2")
  const room = width - parts.slice(0, -1).join(".").length - 1
  if (last && room > 5) parts[last] = middle(parts[last], room, 0.4)
  return middle(parts.join("."), width, 0.4)
}

// The root of a model has no name.
const nameOf = row => row.name || "(model)"
