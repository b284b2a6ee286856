// Say when the stream of figures is lost, and when it is back.  Everything else is htmx.
const lost = (is) => { document.getElementById("lost").hidden = !is }
document.addEventListener("htmx:sse:error", () => lost(true))
document.addEventListener("htmx:sse:after:message", () => lost(false))
// What is wrong with the servers stands first in the window's title, as it does on the page.
document.addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live")
  if (!live) return
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
