"""Exports: turn a request into calls of the service's own SDK. All targets share this code.

fields       reads a request, and reports fields that the export did not use
calls        represents the calls as data; `build` executes them
python_code  writes the calls as Python code
"""
