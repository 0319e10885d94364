// What the page shows now: the tab, its rows, and the choices of the reader.
const data = JSON.parse(at("data").textContent)
const state = {filters: {}, text: "", regex: false, fold: null, columns: {}, sort: null, open: new Set(), row: null}
let tab, rows, groups, short

const infinite = {inf: Infinity, "-inf": -Infinity, nan: null}
const record = (columns, values, index) => Object.fromEntries([["index", index],
  ...columns.map((c, i) => [c.field, c.text ? values[i] : infinite[values[i]] ?? values[i]])])

// The rows of a tab as objects. A group stands for repeated blocks; its number follows those of the rows.
function readRows(kind) {
  tab = kind
  rows = kind.rows.map((values, i) => record(kind.columns, values, i))
  const made = (g, i) => ({...record(kind.columns, g.row, rows.length + i), members: g.members.map(m => rows[m])})
  groups = kind.groups.map(made)
  for (const g of groups) for (const m of g.members) m.group = g
  short = {}
}

// The name of a row in so many characters, told apart from the others that are listed.
function shortName(row, width) {
  short[width] ??= toldApart([...rows, ...groups].filter(r => listed.has(r.index)).map(nameOf), width)
  return short[width].get(nameOf(row)) ?? toldApart([nameOf(row)], width).get(nameOf(row))
}
const rowAt = index => index < rows.length ? rows[index] : groups[index - rows.length]

// Whether a text or a regular expression stands in the name, the type or the operator, or in any text of rows without a
// name; null: no such expression.
function finder(text, regex) {
  if (!text) return () => true
  const texts = tab.columns.filter(c => c.text).map(c => c.field), named = texts.includes("name")
  const fields = row => named ? [nameOf(row), row.type ?? "", row.operator ?? ""] : texts.map(f => row[f] ?? "")
  const part = text.toLowerCase()
  if (!regex) return row => fields(row).some(s => s.toLowerCase().includes(part))
  try {
    const expression = new RegExp(text, "i")
    return row => fields(row).some(s => expression.test(s))
  } catch { return null }
}

// A filter names a value, or with "not " before it the value that is left out.
const agrees = (value, wanted) =>
  wanted.startsWith("not ") ? String(value) !== wanted.slice(4) : String(value) === wanted

function filtered() {
  const wanted = data.filters.filter(f => state.filters[f.field] && tab.columns.some(c => c.field === f.field))
  const found = finder(state.text, state.regex)
  at("text").setAttribute("aria-invalid", found === null)
  const agreed = row => wanted.every(f => agrees(row[f.field], state.filters[f.field]))
  return rows.filter(row => agreed(row) && (!found || found(row)))
}

// `rows` pass the filters. A group of which all rows pass stands in their place, until it is opened.
// `listed` have a line in the table, `marked` a marker on the charts.
function arrange() {
  const passing = new Set(filtered())
  const fold = state.fold ?? tab.fold, entire = g => g.members.every(m => passing.has(m))
  for (const r of rows) r.under = fold && r.group && entire(r.group) ? r.group : null
  const whole = [...new Set([...passing].map(r => r.under).filter(Boolean))]
  const single = [...passing].filter(r => !r.under || state.open.has(r.under.index))
  const closed = whole.filter(g => !state.open.has(g.index))
  return {rows: [...passing], listed: new Set([...single, ...whole].map(r => r.index)),
          marked: new Set([...single, ...closed].map(r => r.index))}
}
