/**
 * The JupyterLab extension: several plugins, and the token through which other extensions get the jobs.
 *
 * | folder      | contents                                                                       |
 * | ----------- | ------------------------------------------------------------------------------ |
 * | `plugins/`  | what JupyterLab starts: what each plugin needs, and where its parts go         |
 * | `model/`    | the jobs: the server's routes, its records, what has changed, a job in words   |
 * | `commands/` | what can be done to a job: one table by verb, and the command of each          |
 * | `notebook/` | what is done to open notebooks: cells found, run as jobs, given a line         |
 * | `sidebar/`  | the list of all jobs (React)                                                   |
 * | `logs/`     | the log viewer                                                                 |
 * | `shell/`    | tabs, the status bar's item, the panel of running sessions, notices            |
 *
 * `eslint.config.mjs` defines which folder may import from which, and enforces it.
 */

import { jobs } from './plugins/jobs';
import { notebook } from './plugins/notebook';
import { sidebar } from './plugins/sidebar';
import { status } from './plugins/status';

export type { Client, RequestError } from './model/client';
export type { JobsModel } from './model/model';
export type { Budget, Job, Jobs, Phase, Progress } from './model/record';
export { ITorchJobs } from './tokens';

export default [jobs, sidebar, notebook, status];
