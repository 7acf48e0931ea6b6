/** The little of react-dom that tests use: JupyterLab brings the package, but not its types. */
declare module 'react-dom/client' {
  export interface Root {
    render(element: import('react').ReactNode): void;
    unmount(): void;
  }
  export function createRoot(container: Element): Root;
}
