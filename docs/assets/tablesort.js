// Sort a table by a column: click its head, or press Enter on it. Ascending, descending, then as it was.
//
// A cell counts as a number if it begins with one: 1,234.5 | 12.3 ± 0.4 ms | 2.6 B | ~80 % | -3e-5 (n = 10). Units are
// brought to one scale, so 900 MiB sorts below 1.2 GiB. `{ data-sort=7 }` in a cell overrides what it shows. Cells without
// a number ("out of memory") stand last in both directions.
const PREFIX = { n: 1e-9, "µ": 1e-6, "μ": 1e-6, u: 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, P: 1e15 }
const DIGITS = "\\d[\\d.,\u2009\u202f\u00a0]*(?:e[-+]?\\d+)?"
// A date or a range is text: what follows the digits is no dash with more digits.
const NUMBER = new RegExp(`^[~≈<>≤≥]?\\s*([-−–+]?${DIGITS})(?![\\d.,]|[-–]\\d)(?:\\s*±\\s*${DIGITS})?\\s*(.*)$`, "i")

// What one of a unit is worth: seconds, bytes, FLOP, or a bare M (million) and B (billion), as in 770 M parameters.
function scale(unit) {
  const binary = /^([KMGTP])iB(?!\w)/.exec(unit)
  if (binary) return 1024 ** ("KMGTP".indexOf(binary[1]) + 1)
  const decimal = /^(?:([nµμum])s|([kKMGTP])(?:B|FLOPs?|FLOP\/s)?|(B))(?!\w)/.exec(unit)
  return decimal ? PREFIX[decimal[1] ?? decimal[2] ?? decimal[3]] : 1
}

function valueOf(cell) {
  const text = (cell.dataset.sort ?? cell.textContent).trim()
  const match = NUMBER.exec(text)
  if (!match) return { text, number: NaN }
  const digits = match[1].replace(/[−–]/, "-").replace(/[,\u2009\u202f\u00a0]/g, "")
  return { text, number: Number(digits) * scale(match[2]) }
}

function compare(a, b, direction) {
  const numbers = [a.number, b.number].filter((number) => !Number.isNaN(number)).length
  if (numbers === 2) return direction * (a.number - b.number)
  if (numbers === 1) return Number.isNaN(a.number) ? 1 : -1
  return direction * a.text.localeCompare(b.text, "en", { numeric: true })
}

// Make a button of each head that says something. `sort` is told its column and "ascending", "descending" or null (as it was).
function addSortButtons(heads, sort) {
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return
    const button = document.createElement("button")
    button.type = "button"
    button.append(...head.childNodes)
    head.append(button)
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }
      const order = head.ariaSort in next ? next[head.ariaSort] : "ascending"
      heads.forEach((other) => other.removeAttribute("aria-sort"))
      if (order) head.ariaSort = order
      sort(column, order)
    })
  })
}

function makeSortable(table) {
  const body = table.tBodies[0]
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])]
  const merged = table.querySelector("[rowspan], [colspan]")
  if (!body || body.rows.length < 3 || table.tHead?.rows.length !== 1 || merged) return
  const original = [...body.rows]
  addSortButtons(heads, (column, order) => {
    if (!order) return body.append(...original)
    const rows = original.map((row) => ({ row, value: valueOf(row.cells[column]) }))
    rows.sort((a, b) => compare(a.value, b.value, order === "ascending" ? 1 : -1))
    body.append(...rows.map(({ row }) => row))
  })
}

// While a table scrolls sideways, the columns that name a line stay in sight: the first of them, as long as they leave
// more than half of the frame to the others.
function pinKeys(frame, table) {
  const keys = [...table.querySelectorAll("thead .key")].slice(0, 3)
  let end = 0
  const ends = keys.map((key) => (end += key.offsetWidth))
  const scrolls = frame.scrollWidth > frame.clientWidth
  const pinned = scrolls ? ends.filter((end) => end < 0.48 * frame.clientWidth).length : 0
  for (const number of [1, 2, 3]) table.classList.toggle(`pinned-${number}`, number === pinned)
  ;["--second", "--third"].forEach((name, i) => table.style.setProperty(name, `${ends[i]}px`))
}

// A frame, a formula or a row of tabs that has nothing to scroll is no stop for the Tab key. Frames in hidden tabs change size
// when they are shown.
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const scrolls = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight
    if (scrolls) target.tabIndex = 0
    else target.removeAttribute("tabindex")
    const table = target.querySelector(":scope > table.data")
    if (table) pinKeys(target, table)
  }
})

for (const table of document.querySelectorAll("table.data")) makeSortable(table)
for (const frame of document.querySelectorAll(".table-frame, div.arithmatex, .tabbed-labels")) sizes.observe(frame)

// The theme knows tabs by their names as they are drawn, and a closed fold draws none. Once it opens, it shows the tab that was
// chosen last elsewhere: of several of its own, the one that the theme keeps first.
function showChosenTabs({ target: fold }) {
  const labels = [...fold.querySelectorAll(".tabbed-labels label")]
  for (const name of (__md_get("__tabs") ?? []).toReversed()) {
    for (const label of labels.filter((one) => one.textContent.trim() === name)) {
      const input = document.getElementById(label.htmlFor)
      input.checked = true
      input.dispatchEvent(new Event("change"))
    }
  }
}
document.addEventListener("toggle", showChosenTabs, true)

// The theme makes a landmark of the buttons of each listing, without a name to tell them apart.
function nameButtons() {
  document.querySelectorAll("nav.md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Listing ${i + 1}`))
}
new MutationObserver(nameButtons).observe(document.body, { childList: true, subtree: true })
nameButtons()
