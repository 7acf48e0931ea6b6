/**
 * The log viewer: what a job's ranks write, during the run and afterwards.
 *
 * How a log arrives. `stream` opens a websocket and receives binary messages. Each has some bytes of one rank's
 * log, the offset where they begin, and when they were written: `RANK.ROUND.OFFSET BYTES:TIME,…` (a round is a
 * set of processes: a restart begins the next). It remembers how much of each log it has, so that it resumes
 * after a lost connection without losing or repeating a byte. Text messages carry the job's record, where it
 * failed first, and the end.
 *
 * How it is kept (`lines/`). `store` has a `RankLog` for each rank, which decodes UTF-8 across message
 * boundaries, applies carriage returns as a terminal does, and splits at newlines. A million lines as objects
 * would take a gigabyte, so a `LineBuffer` keeps the text as it is, in blocks, with an index of where each line
 * begins, and numbers are kept in typed arrays (`packed`). Beyond 400 million characters the oldest blocks of
 * the longest log are dropped. Each line is analysed once, as it arrives (`text/`): `levels` determines its
 * level, `ansi` carries colours over from the line before, so that each line can be drawn on its own.
 *
 * How it is indexed and searched. A view shows `Rows`: numbers that stand for a rank and a line of its log
 * (`lines/rows`). `Single` has the lines of one rank; `Merged` has those of all ranks in the order of their
 * times, kept as runs of lines of one rank; a `Scan` (`lines/search`) has those of other rows that a filter or
 * a search accepts. A scan examines rows for 8 ms a frame, and continues when more have arrived: the page never
 * freezes.
 *
 * How it is drawn (`view/`). Only after a change, and at most once a frame. `columns` has one `Pane` per rank,
 * or one for all ranks merged. A pane asks `virtualscroll` which rows are in view, even if the list is taller
 * than a browser can draw, and keeps elements only for these (`row`), made of a line's colours and hits
 * (`pieces`).
 *
 * What is above it (`controls/`): the job's state (`headline`), what is shown and how (`toolbar`, `ranksmenu`),
 * the search (`finder`); `keys` maps keys to actions. `viewer` ties all this together: it decides which ranks
 * are read and shown at first, and goes to where the job failed.
 *
 * Each folder uses only those before it: `text`, `lines`, `view`, `controls`. All may use the types in
 * `stream`.
 */

export { type LogClient, LogViewer, type LogViewerOptions } from './viewer';
