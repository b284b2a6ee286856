// Say when the stream of figures is lost, and when it is back.  Everything else is htmx.
const lost = (is) => { document.getElementById("lost").hidden = !is }
document.addEventListener("htmx:sse:error", () => lost(true))
document.addEventListener("htmx:sse:after:message", () => lost(false))
// A notice of an action stays until the next one, or for a while.
document.addEventListener("htmx:after:swap", (event) => {
  const notice = document.getElementById("notice")
  if (event.target !== notice && event.detail?.ctx?.target !== notice) return
  clearTimeout(notice.timer)
  notice.timer = setTimeout(() => { notice.textContent = "" }, 15000)
})
