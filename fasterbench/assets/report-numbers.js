// Elements of the page.
const at = id => document.getElementById(id)
const element = (tag, props = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), props)
  made.append(...children)
  return made
}

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

// A long name loses its middle.
const shorten = (name, width) => name.length <= width ? name
  : `${name.slice(0, Math.floor(width * 0.4))}…${name.slice(1 - Math.ceil(width * 0.6))}`

// The root of a model has no name.
const nameOf = row => row.name || "(model)"
