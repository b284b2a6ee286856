// Say when the stream of figures is lost, and when it is back.  Everything else is htmx.
const lost = (is) => { document.getElementById("lost").hidden = !is }
document.addEventListener("htmx:sse:error", () => lost(true))
document.addEventListener("htmx:sse:after:message", () => lost(false))
// What is wrong with the servers stands first in the window's title, as it does on the page.
document.addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live")
  if (!live?.dataset.title) return // a page that is not kept up to date
  new MutationObserver(() => {
    const alarm = document.getElementById("alarm")?.dataset.alarm
    document.title = alarm ? `${alarm} · ${live.dataset.title}` : live.dataset.title
  }).observe(live, { subtree: true, childList: true, attributes: true })
})
// A notice of an action stays until the next one, or for a while.
document.addEventListener("htmx:after:swap", (event) => {
  const notice = document.getElementById("notice")
  if (event.target !== notice && event.detail?.ctx?.target !== notice) return
  clearTimeout(notice.timer)
  notice.timer = setTimeout(() => { notice.textContent = "" }, 15000)
})
// Boxes to tick: one for all that are shown, which needs this script, so it is hidden without it.
const boxesOf = (all) => document.querySelectorAll(`input[type=checkbox][form="${all.dataset.chooses}"]`)
const showAll = () => document.querySelectorAll("[data-chooses]").forEach((all) => { all.hidden = false })
document.addEventListener("DOMContentLoaded", showAll)
document.addEventListener("htmx:sse:after:message", showAll)
document.addEventListener("change", (event) => {
  if (event.target.dataset.chooses) boxesOf(event.target).forEach((box) => { box.checked = event.target.checked })
})
// The moment and the value of a curve under the pointer; without this script the browser shows the same, a little later.
document.addEventListener("pointerover", (event) => {
  const tip = document.getElementById("tip")
  const mark = event.target.closest?.(".mark")
  tip.hidden = !mark
  if (!mark) return
  const title = mark.querySelector("title")
  if (title) { mark.dataset.tip = title.textContent; title.remove() }
  tip.textContent = mark.dataset.tip
  const place = mark.getBoundingClientRect()
  const left = Math.min(place.left, document.documentElement.clientWidth - tip.offsetWidth - 8)
  tip.style.left = `${Math.max(8, left)}px`
  tip.style.top = `${place.top - tip.offsetHeight - 4}px`
})
