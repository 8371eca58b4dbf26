from tests.interop.allocation import main

raise SystemExit(main())
