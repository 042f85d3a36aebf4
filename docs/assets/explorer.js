// The results explorer: filter, sort and download the lines of window.RESULTS (docs/generated/explorer.js).
//
// Filters with few values are lists of them; words, separated by commas, are looked for in the whole line. The table shows a page of lines at a
// time, and sorting and downloads take all that match.
{
  const PAGE = 100
  const LISTS = ["GPU", "stem", "size", "context", "precision", "metric"]
  const { columns, texts, rows } = window.RESULTS
  const at = (name) => columns.indexOf(name)
  const firstNumber = at("context")
  const lines = rows.map((row) => row.map((cell, i) => (i < firstNumber ? texts[cell] : cell)))
  const ORDER = ["GPU", "stem", "size", "context", "precision", "metric", "value", "unit", "samples", "configuration"]
  const root = document.getElementById("explorer")
  const [form, status, body, more] = ["form", "[role=status]", "tbody", ".more"].map((s) => root.querySelector(s))
  const state = { chosen: {}, words: "", by: null, order: null, shown: PAGE }

  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : (typeof b === "number") - (typeof a === "number") || String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true })

  // Lines that every filter lets pass; without one of them, to see what else it could be set to.
  function matching(except) {
    const wanted = Object.entries(state.chosen).filter(([name, value]) => value !== "" && name !== except)
    const phrases = state.words.toLowerCase().split(",").map((phrase) => phrase.trim()).filter(Boolean)
    return lines.filter((line) => {
      if (!wanted.every(([name, value]) => String(line[at(name)] ?? "") === value)) return false
      const text = phrases.length ? line.join(" ").toLowerCase() : ""
      return phrases.every((phrase) => text.includes(phrase))
    })
  }

  function sorted(found) {
    if (!state.order) return found
    const column = at(state.by)
    const sign = state.order === "ascending" ? 1 : -1
    // What has no number stands last in both directions.
    const empty = (line) => line[column] === null || line[column] === ""
    return [...found].sort((a, b) => empty(a) - empty(b) || sign * compare(a[column], b[column]))
  }

  function format(value) {
    if (typeof value !== "number") return value ?? ""
    const large = Math.abs(value) >= 1e15 || (value !== 0 && Math.abs(value) < 1e-3)
    return large ? value.toExponential(3) : value.toLocaleString("en", { maximumSignificantDigits: 21 })
  }

  function fillLists() {
    for (const name of LISTS) {
      const list = form.elements[name]
      const values = [...new Set(matching(name).map((line) => line[at(name)]))].filter((v) => v !== null && v !== "")
      values.sort(compare)
      list.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value, value)))
      list.value = state.chosen[name] ?? ""
    }
  }

  function show() {
    const found = sorted(matching())
    body.replaceChildren(
      ...found.slice(0, state.shown).map((line) => {
        const row = document.createElement("tr")
        for (const name of ORDER) {
          const cell = row.insertCell()
          cell.textContent = name === "context" ? (line[at(name)] ?? "") : format(line[at(name)])
          if (typeof line[at(name)] === "number") cell.className = "r"
        }
        return row
      }),
    )
    const shown = Math.min(state.shown, found.length)
    status.textContent = `${found.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} lines match; ${shown} are shown.`
    more.hidden = shown === found.length
  }

  function changed() {
    state.shown = PAGE
    fillLists()
    show()
  }

  function download(name, type, text) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(new Blob([text], { type }))
    link.download = name
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 1000)
  }

  const cells = (line) => ORDER.map((name) => line[at(name)])
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? ""))
  const WRITERS = {
    csv: () => download("results.csv", "text/csv", [ORDER, ...sorted(matching()).map(cells)].map((l) => l.map(quoted).join(",") + "\n").join("")),
    json: () => {
      const found = sorted(matching()).map((line) => Object.fromEntries(ORDER.map((name) => [name, line[at(name)]])))
      download("results.json", "application/json", JSON.stringify(found, null, 1))
    },
  }

  form.addEventListener("submit", (event) => event.preventDefault())
  form.addEventListener("input", ({ target }) => {
    if (target.name === "words") state.words = target.value
    else state.chosen[target.name] = target.value
    changed()
  })
  form.addEventListener("reset", () => {
    Object.assign(state, { chosen: {}, words: "" })
    setTimeout(changed)
  })
  more.addEventListener("click", () => {
    state.shown += PAGE
    show()
  })
  for (const [kind, write] of Object.entries(WRITERS)) root.querySelector(`[data-download=${kind}]`).addEventListener("click", write)
  // tablesort.js, which every page loads before this, makes the buttons.
  addSortButtons([...root.querySelectorAll("thead th")], (column, order) => {
    Object.assign(state, { by: ORDER[column], order })
    show()
  })
  changed()
}
