import { WebKitSession } from '../web/browsers/webkit.js';
import { describeCoreFlow } from './core-flow.js';

describeCoreFlow('WebKitGTK', () => WebKitSession.start());
