"""What the exports of all targets share: a request turned back into calls of a service's own SDK.

fields       reading a request so that no field is passed over in silence
calls        the calls, as data; `build` makes the objects
python_code  the same calls as code to read and run
"""
