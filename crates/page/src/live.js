// Live updates of a page of pleach. Without this script, every page works and is refreshed by hand.
//
// The server sends events that name a fragment and its digest. The script fetches the fragment and
// replaces it. It waits while the reader types, selects text or has changed a form.

const RETRY = 1000; // milliseconds until a postponed replacement is tried again
const RELOAD = 30000; // milliseconds between reloads without a stream
const TYPING = 300; // milliseconds after the last key in a filter

const status = document.getElementById('live');
let digest = fragment().dataset.digest;
let wanted = digest;
let stream = null;
let timer = 0;
let isFetching = false;

function fragment() {
  return document.getElementById('content');
}

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

// Returns whether a replacement would take something away from the reader.
function isInUse() {
  const main = fragment();
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) return true;
  const fields = main.querySelectorAll('form[method="post"] input:not([type="hidden"])');
  return [...fields].some((field) => field.value !== field.defaultValue || field === document.activeElement);
}

// Returns a way to find an element again in a new version of the fragment.
function mark(element) {
  const main = fragment();
  if (!element || element === main || !main.contains(element)) return null;
  const path = [];
  for (let one = element; one !== main; one = one.parentElement) {
    path.unshift([...one.parentElement.children].indexOf(one));
  }
  const { tagName, name } = element;
  return { href: element.getAttribute('href'), name, path, tagName };
}

function find(marked) {
  const main = fragment();
  if (marked.href) {
    const links = [...main.querySelectorAll('a')];
    const same = links.find((link) => link.getAttribute('href') === marked.href);
    if (same) return same;
  }
  if (marked.name) return main.querySelector(`${marked.tagName}[name="${CSS.escape(marked.name)}"]`);
  const found = marked.path.reduce((one, index) => one && one.children[index], main);
  return found && found.tagName === marked.tagName ? found : null;
}

function replace(text) {
  const fresh = new DOMParser().parseFromString(text, 'text/html').getElementById('content');
  if (!fresh) return false;
  const old = fragment();
  const focused = mark(document.activeElement);
  const typed = focused && document.activeElement.value;
  const caret = focused && document.activeElement.selectionStart;
  const open = new Map([...old.querySelectorAll('details')].map((one) => [one.firstChild.textContent, one.open]));
  const scrolled = [...old.querySelectorAll('pre, .picture')].map((one) => one.scrollLeft);
  const { scrollX, scrollY } = window;
  old.replaceWith(document.adoptNode(fresh));
  for (const one of fresh.querySelectorAll('details')) {
    const was = open.get(one.firstChild.textContent);
    if (was !== undefined) one.open = was;
  }
  fresh.querySelectorAll('pre, .picture').forEach((one, index) => {
    one.scrollLeft = scrolled[index] || 0;
  });
  const target = focused && find(focused);
  if (target) {
    target.focus({ preventScroll: true });
    if (typed !== undefined && target.type === 'search') {
      target.value = typed;
      target.setSelectionRange(caret, caret);
    }
  }
  window.scrollTo(scrollX, scrollY);
  digest = fresh.dataset.digest;
  return true;
}

// Fetches the fragment at the present address, or at another one of the same page.
async function update(address = location.href) {
  clearTimeout(timer);
  if (isFetching || isInUse()) {
    if (isInUse()) say('update waits for your input');
    timer = setTimeout(update, RETRY);
    return;
  }
  isFetching = true;
  try {
    const url = new URL(address);
    url.hash = '';
    url.searchParams.set('fragment', 'main');
    const answer = await fetch(url, { redirect: 'error', headers: { Accept: 'text/html' } });
    if (answer.status === 404 || answer.status === 401) location.reload();
    if (!answer.ok || isInUse() || !replace(await answer.text())) throw new Error();
    wanted = digest;
    say(stream ? 'live' : 'reloads every 30 s');
  } catch {
    say('no connection');
    timer = setTimeout(update, stream ? RETRY : RELOAD);
  }
  isFetching = false;
}

function follow() {
  stream = new EventSource(`/events?scope=${encodeURIComponent(fragment().dataset.scope)}`);
  stream.onopen = () => say('live');
  stream.addEventListener('change', (event) => {
    const change = JSON.parse(event.data);
    wanted = change.digest;
    if (wanted !== digest) update();
  });
  stream.onerror = () => {
    // The browser connects again by itself, unless the server refused the stream.
    if (stream.readyState !== EventSource.CLOSED) return say('connecting');
    stream = null;
    say('reloads every 30 s');
    timer = setTimeout(reload, RELOAD);
  };
}

async function reload() {
  await update();
  if (!document.hidden) timer = setTimeout(follow, RELOAD);
}

// A hidden page needs no stream, and browsers allow few of them at once.
document.addEventListener('visibilitychange', () => {
  clearTimeout(timer);
  if (stream) stream.close();
  stream = null;
  if (!document.hidden) {
    update();
    follow();
  }
});

// Filters apply while the reader types.
let typing = 0;
document.addEventListener('input', (event) => {
  const form = event.target.closest('form.filter');
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const query = new URLSearchParams(new FormData(form));
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    const url = new URL(form.getAttribute('action'), location.href);
    url.search = query;
    history.replaceState(null, '', url);
    update(url);
  }, TYPING);
});

if (!document.hidden) follow();
