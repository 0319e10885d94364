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
  text: x => String(x), count: x => String(x), flag: x => x ? "yes" : "no", mark: x => x ? "±" : "",
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
  const text = name.replace(/^void |(\(anonymous namespace\)|<?unnamed>)::/g, "").trim()
  let depth = 0, end = text.length
  if (text.endsWith(")")) do { end -= 1; depth += (text[end] === ")") - (text[end] === "(") } while (depth && end)
  return text.slice(0, end || text.length).replace(/\b(?:\w+::)+/g, "")
}

// A long name loses its middle.
const middle = (text, width, start) => text.length <= width ? text
  : `${text.slice(0, Math.floor(width * start))}…${text.slice(1 - Math.ceil(width * (1 - start)))}`
const isPath = name => !/[<(:/]| (?!×\d+$)/.test(name)

// The kept parts of a path, an ellipsis for what is left out between and before them.
function gapped(parts, kept) {
  let text = "", last = -1
  for (const i of [...kept].sort((a, b) => a - b)) {
    text += (i > last + 1 ? "…" : text && ".") + parts[i]
    last = i
  }
  return text
}

// Further parts as they fit, from the end on; where the kept ones are too long, the longest ones lose their middles.
function fitted(parts, kept, width) {
  kept = new Set(kept)
  for (let i = parts.length - 1; i >= 0; i--) if (!kept.has(i) && gapped(parts, [...kept, i]).length <= width) kept.add(i)
  const over = gapped(parts, kept).length - width, lengths = parts.map(p => p.length)
  for (let k = 0; k < over; k++) lengths[[...kept].reduce((a, b) => lengths[b] > lengths[a] ? b : a)] -= 1
  const cut = parts.map((p, i) => kept.has(i) ? middle(p, Math.max(lengths[i], 4), 0.6) : p)
  return middle(gapped(cut, kept), width, 0.4)
}

function sorted(items, key) {
  const found = new Map()
  for (const item of items) found.set(key(item), [...found.get(key(item)) ?? [], item])
  return found
}

// Paths keep their last part and the parts that tell them apart; of a signature the start says most.
function toldApart(names, width) {
  const all = [...new Set(names)].map(name => ({name, parts: name.split("."), kept: new Set()}))
  for (const n of all) n.kept.add(n.parts.length - 1)
  const at = (n, k) => n.parts[n.parts.length - k] ?? ""
  for (let alike = true; alike;) {
    alike = false
    for (const group of sorted(all, n => gapped(n.parts, n.kept)).values()) {
      if (group.length < 2) continue
      const ks = Array.from({length: Math.max(...group.map(n => n.parts.length))}, (_, k) => k + 1)
      const fresh = (n, k) => n.parts.length >= k && !n.kept.has(n.parts.length - k)
      const more = ks.find(k => new Set(group.map(n => at(n, k))).size > 1 && group.some(n => fresh(n, k)))
      if (more) for (const n of group) if (fresh(n, more)) { n.kept.add(n.parts.length - more); alike = true }
    }
  }
  const short = n => n.name.length <= width ? n.name : isPath(n.name) ? fitted(n.parts, n.kept, width)
    : middle(stem(n.name), width, 0.66)
  return new Map(all.map(n => [n.name, short(n)]))
}

// The root of a model has no name.
const nameOf = row => row.name || "(model)"
