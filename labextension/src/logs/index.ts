export { type LogClient, LogViewer, type LogViewerOptions } from './viewer';
