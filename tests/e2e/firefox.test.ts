import { launchFirefox } from '../web/browsers/firefox.js';
import { describeCoreFlow } from './core-flow.js';

describeCoreFlow('Firefox', launchFirefox);
