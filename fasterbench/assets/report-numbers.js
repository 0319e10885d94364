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
  const most = unit === "s" ? 0 : 6                       // nobody says kiloseconds
  const power = x ? Math.max(-5, Math.min(most, Math.floor(Math.log10(Math.abs(x) * 1.000005) / 3))) : 0
  return `${(x / 1000 ** power).toFixed(x ? 2 : 0)}${unit && " "}${prefixes[power + 5]}${unit}`
}

// Two decimals, of what is small two digits: 0.00000023.
const decimals = x => x > 0 && x < 0.095 ? x.toFixed(Math.min(100, 1 - Math.floor(Math.log10(x)))).replace(/0$/, "") : x.toFixed(2)

const writers = {
  text: x => String(x), count: x => String(x), flag: x => x ? "yes" : "no", mark: x => x ? "no" : "",
  si, amount: x => si(x), share: x => (100 * x).toFixed(1) + " %", percent: x => x.toFixed(1) + " %",
  ratio: x => "×" + decimals(x), fixed: (x, unit) => unit === "GFLOP/s" ? si(1e9 * x, "FLOP/s") : decimals(x),
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
  : `${text.slice(0, Math.floor(width * start))}…${text.slice(1 - Math.ceil(width * (1 - start)))}`.replace(/…+/g, "…")
const isPath = name => !/[<(:/]| (?!×\d+$)/.test(name.replace(/ \([\w ,]+\)$/, ""))

// The kept parts of a path, an ellipsis for what is left out between and before them.
function gapped(parts, kept) {
  let text = "", last = -1
  for (const i of [...kept].sort((a, b) => a - b)) {
    text += (parts[i].startsWith("…") ? "" : i > last + 1 ? "…" : text && ".") + parts[i]
    last = i
  }
  return text
}

// A part without its first word, the last part without a word in its middle: ViTSelfOutput, …SelfOutput, …Output.
const word = /(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z0-9])(?=[A-Z][a-z])|(?=_[a-z])/
function less(part, last) {
  const words = part.replace(/^…/, "").split(word)
  if (last && words.length > 2) return `${words[0]}…${words.slice(2).join("")}`.replace(/…+/g, "…")
  return words.length > 1 ? `…${words.slice(1).join("")}` : part
}

// Further parts as they fit, from the end on; where the kept ones are too long, they lose `words`, and at last letters.
// The `_*` of a block says nothing before another part.
function fitted(parts, kept, width, words = true) {
  const last = parts.length - 1, cut = parts.map((p, i) => i < last ? p.replace(/_\*$/, "") : p)
  kept = new Set(kept)
  for (let i = last; kept.has(i) || i >= 0 && gapped(cut, [...kept, i]).length <= width; i--) kept.add(i)
  const longest = of => of.reduce((a, b) => cut[b].length > cut[a].length ? b : a)
  const letters = part => part.length > 4 ? middle(part, part.length - 1, 0.6) : part
  for (const shorter of words ? [less, letters] : [letters]) for (const may of [i => i < last, () => true]) {
    const can = () => [...kept].filter(i => may(i) && shorter(cut[i], i === last) !== cut[i])
    for (let left = can(); left.length && gapped(cut, kept).length > width; left = can()) {
      const i = longest(left)
      cut[i] = shorter(cut[i], i === last)
    }
  }
  return middle(gapped(cut, kept), width, 0.4)
}

// From where it first differs from others that look alike; with `Math.max` from the one most like it.
function fromDifference(name, others, width, first = Math.min) {
  const same = first(...others.filter(o => o !== name).map(o => [...name].findIndex((c, i) => c !== o[i])).map(i => i < 0 ? name.length : i))
  const start = name.slice(0, same).search(/[^\W_]*$/), head = name.match(/^_*[^\W_]*/)[0]
  const text = start > head.length + 2 ? `${head}…${name.slice(start)}` : name
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`
}

function sorted(items, key) {
  const found = new Map()
  for (const item of items) found.set(key(item), [...found.get(key(item)) ?? [], item])
  return found
}

// Names in so many characters, or as many more as it takes to tell them apart. Paths keep their last part and the parts
// that differ; of a signature the start says most.
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
  const short = (n, width) => n.name.length <= width ? n.name : isPath(n.name) ? fitted(n.parts, n.kept, width)
    : middle(stem(n.name), width, 0.66)
  const shown = new Map(all.map(n => [n.name, short(n, width)]))
  const alike = () => [...sorted(all, n => shown.get(n.name)).values()].filter(g => g.length > 1)
  // Signatures that differ in their parameters alone keep them.
  const different = (n, group, first) => {
    const stems = group.map(g => stem(g.name)), of = new Set(stems).size < stems.length ? group.map(g => g.name) : stems
    shown.set(n.name, fromDifference(of[group.indexOf(n)], of, width, first))
  }
  for (const group of alike()) for (const n of group)
    if (isPath(n.name)) shown.set(n.name, fitted(n.parts, n.kept, width, false)); else different(n, group)
  for (const first of [Math.min, Math.max]) for (const group of alike()) for (const n of group)
    if (n.parts.length < 2) different(n, group, first)
  for (let more = width + 2, group; group = alike()[0]; more += Math.max(2, more >> 3)) for (const n of group) shown.set(n.name, short(n, more))
  return shown
}

// The name of a row, which the root of a model lacks; of rows without names the first text, or the first number.
function nameOf(row) {
  const first = tab.columns.find(c => c.text) ?? tab.columns[0], named = tab.columns.some(c => c.field === "name")
  return row.name || (named ? "(model)" : first.text ? row[first.field] || "?" : `${first.title} ${row[first.field]}`)
}
