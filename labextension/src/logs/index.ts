/**
 * The log viewer: what a job's ranks write, while it runs and after.
 *
 * How a log comes in. `stream` opens a websocket and gets binary messages, each of them some bytes of one
 * rank's log with the place where they begin, and when they were written: `RANK.ROUND.OFFSET BYTES:TIME,…` (a round is a set of processes: a restart
 * begins the next). It remembers how far each log is known, so that it goes on over a cut with no byte lost
 * or taken twice. Messages in words are the job's record, where it failed first, and the end.
 *
 * How it is kept (`lines/`). `store` has a `RankLog` for each rank, which decodes UTF-8 over the edges of
 * messages, applies carriage returns as a terminal does, and cuts at newlines. A million lines as objects
 * would take a gigabyte; so a `LineBuffer` keeps the text as it is, in blocks, with an index of where each
 * line begins, and numbers lie in typed arrays (`packed`). Beyond 400 million characters the oldest blocks
 * of the longest log are let go of. What a line is, is read once, as it comes (`text/`): `levels` says how
 * grave it is, `ansi` carries colours over from the line before, so that each line can be drawn alone.
 *
 * How it is indexed and searched. A view shows `Rows`: numbers that stand for a rank and a line of its log
 * (`lines/rows`). `Single` are one rank's; `Merged` are all ranks' in the order of their times, kept as runs of
 * lines of one rank; a `Scan` (`lines/search`) are those of other rows that a filter or a search accepts. A
 * scan looks at some rows a frame, for 8 ms, and goes on when more have come: a page never stands still.
 *
 * How it is drawn (`view/`). Each frame, at most one a change. `columns` has a `Pane` a rank, or one of all
 * merged. A pane asks `virtualscroll` which rows are in view, also where a list is higher than a browser
 * draws, and keeps elements for these alone (`row`), made of a line's colours and hits (`pieces`).
 *
 * What is above it (`controls/`): the job's state (`headline`), what is shown and how (`toolbar`,
 * `ranksmenu`), the search (`finder`); `keys` says what keys do. `viewer` ties all this together: it decides
 * which ranks are read and shown at first, and goes to where the job failed.
 *
 * Each room uses only those before it: `text`, `lines`, `view`, `controls`. What a message is, `stream` says to all.
 */

export { type LogClient, LogViewer, type LogViewerOptions } from './viewer';
