/** The ids that settings, menus, notebooks' outputs and saved layouts refer to. */

import { COMMANDS } from './commands/table';

export const PluginIDs = {
  /** It has all plugins' settings: JupyterLab stores a user's under this id (`schema/plugin.json`). */
  jobs: 'nbtorchjob:plugin',
  sidebar: 'nbtorchjob:sidebar',
  notebook: 'nbtorchjob:notebook',
  status: 'nbtorchjob:status'
} as const;

export const CommandIDs = {
  runCell: 'nbtorchjob:run-cell',
  openPanel: 'nbtorchjob:open-panel',
  insertLine: 'nbtorchjob:insert-line',
  showJobs: 'nbtorchjob:show-jobs',
  compare: 'nbtorchjob:compare',
  ...COMMANDS,
  openLine: 'nbtorchjob:open-line',
  openFile: 'nbtorchjob:open-file',
  downloadLogs: 'nbtorchjob:download-logs',
  downloadArtifacts: 'nbtorchjob:download-artifacts',
  copyManifest: 'nbtorchjob:copy-manifest',
  goToCell: 'nbtorchjob:go-to-cell'
} as const;

/** The commands for all runs of a group, by the verbs that act on a single job. */
export const RunsCommandIDs = {
  attach: 'nbtorchjob:attach-runs',
  cancel: 'nbtorchjob:cancel-runs',
  retry: 'nbtorchjob:retry-runs',
  delete: 'nbtorchjob:delete-runs'
} as const;
