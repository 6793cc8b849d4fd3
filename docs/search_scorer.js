// How the search ranks its hits. Sphinx gives every page the same score that has the words somewhere in its text, and
// then sorts by title. Here a page ranks higher if the words are in its headings and index entries, and a guide ranks
// above the reference, and the reference above the records of the project. The name of a class finds its page first.
var Scorer = (() => {
  const WEIGHTS = [
    [/^(project\/|design|differences_from_optax|released_code$)/, 0.1],
    [/^api\/optimizers\//, 0.9],
    [/^api\/(containers|transforms)\//, 0.8],
    [/^api\//, 0.6],
    [/^notebooks\//, 0.7],
    [/^(index|overview|features|libraries|coming_from_optax|optax_names|sharp_edges)$/, 0.75], // pages about everything
    [/^recipes$/, 0.9],
  ];
  const POINTS = { entry: 4, heading: 3, text: 1, phrase: 3 };
  const TITLE = 15;
  const OWN_PAGE = 1000;

  // A page is listed once, by its best hit, which is its last one.
  const performSearch = Search._performSearch;
  Search._performSearch = (...query) => {
    const listed = new Set();
    const isNew = ([page]) => !listed.has(page) && listed.add(page);
    return performSearch(...query).reverse().filter(isNew).reverse();
  };

  const weight = (page) => (WEIGHTS.find(([pages]) => pages.test(page)) ?? [null, 1])[1];
  const asked = () => new URLSearchParams(window.location.search).get("q") ?? "";
  const stems = (text) => {
    const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
    return new Set(words.map((word) => new Stemmer().stemWord(word)));
  };

  // The stems of each main index entry, by page.
  let entries;
  const readEntries = () => {
    entries = {};
    const { indexentries, docnames } = Search._index;
    for (const [entry, places] of Object.entries(indexentries)) {
      const words = stems(entry);
      for (const [page, , isMain] of places) {
        if (isMain) (entries[docnames[page]] ??= []).push(words);
      }
    }
  };

  // The query, its stems, and the pages that have each of them in a heading.
  let text;
  let query;
  const readQuery = () => {
    const { titleterms, docnames } = Search._index;
    if (!entries) readEntries();
    text = asked();
    query = [...stems(text)].map((stem) => {
      const found = Object.hasOwn(titleterms, stem) ? [titleterms[stem]].flat() : [];
      return { stem, headings: new Set(found.map((page) => docnames[page])) };
    });
  };

  // Whether one index entry of a page has every word of the query.
  const isEntry = (page) => {
    if (text !== asked()) readQuery();
    return (entries[page] ?? []).some((entry) => query.every(({ stem }) => entry.has(stem)));
  };

  // The mean over the words of the query, and more if they are together in one index entry.
  const relevance = (page) => {
    const phrase = isEntry(page) ? POINTS.phrase : 0;
    const own = entries[page] ?? [];
    const points = query.map(({ stem, headings }) =>
      own.some((entry) => entry.has(stem)) ? POINTS.entry : headings.has(page) ? POINTS.heading : POINTS.text,
    );
    return points.reduce((sum, x) => sum + x, 0) / points.length + phrase;
  };

  // Whether a name, `modulax.ScaleByLBFGS`, has a word that begins with a word of the query. Sphinx finds `TPU` in
  // `IndividualOutputs`.
  const isNamed = (name) => {
    const words = name.split(/[^\p{Letter}\p{Number}]+|(?<=[\p{Ll}\d])(?=\p{Lu})|(?<=\p{Lu})(?=\p{Lu}\p{Ll})/u);
    const starts = splitQuery(asked().toLowerCase()).flatMap((word) => word.split("_")).filter(Boolean);
    const last = name.split(".").at(-1).toLowerCase();
    return starts.some((start) => last.startsWith(start) || words.some((word) => word.toLowerCase().startsWith(start)));
  };

  // Whether the query is the name of a class that has this page to itself.
  const isOwnPage = (page, name) => {
    const last = name.split(".").at(-1);
    return last === asked().trim() && page.endsWith(`/${last.toLowerCase()}`);
  };

  // By kind, between 0 and 100. An exact index entry has 100 from Sphinx, a name of the reference at most 26. Sphinx
  // also finds the entry `PSGD` for `SGD`.
  const SCORES = {
    index: (page, score) => (isEntry(page) ? score : 5),
    title: (page, score) => 5 * score,
    object: (page, score, name) => (isOwnPage(page, name) ? OWN_PAGE : isNamed(name) ? 2.5 * score : 5),
    text: (page) => 10 * relevance(page),
  };

  return {
    score: ([page, title, , , score, , kind]) => {
      const isTitle = kind === "title" && score > TITLE; // all of the title of the page, `Benchmarks`
      return (isTitle ? 1 : weight(page)) * SCORES[kind](page, score, title);
    },
    // What Sphinx starts from.
    objNameMatch: 11,
    objPartialMatch: 2,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: TITLE,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
  };
})();
