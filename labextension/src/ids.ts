/** The names that others know us by: menus, settings, notebooks' outputs, saved layouts. */

export const PLUGIN = 'nbtorchjob:plugin';

export const CommandIDs = {
  runCell: 'nbtorchjob:run-cell',
  openPanel: 'nbtorchjob:open-panel',
  insertLine: 'nbtorchjob:insert-line',
  showJobs: 'nbtorchjob:show-jobs',
  attach: 'nbtorchjob:attach',
  logs: 'nbtorchjob:logs',
  describe: 'nbtorchjob:describe',
  cancel: 'nbtorchjob:cancel',
  delete: 'nbtorchjob:delete',
  retry: 'nbtorchjob:retry',
  suspend: 'nbtorchjob:suspend',
  resume: 'nbtorchjob:resume',
  copyManifest: 'nbtorchjob:copy-manifest',
  goToCell: 'nbtorchjob:go-to-cell'
} as const;
